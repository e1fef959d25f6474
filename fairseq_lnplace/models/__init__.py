"""The models; fairseq imports every module of this folder whose name has no leading underscore."""
