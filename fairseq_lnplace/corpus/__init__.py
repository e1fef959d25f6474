"""Text: where it comes from, how it becomes words and pieces, and how it is made ready for fairseq.

From: ``libreoffice``, ``applications``, ``iwslt14``, ``wmt14``, ``glue``, ``documents``, ``synthetic``.
Into: ``prepare`` for translation, ``prepare_text`` for language models, ``prepare_classes`` to fine-tune these.
"""
