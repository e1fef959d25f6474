"""Experiments: a grid of trainings that is read from a file, run, stopped and continued, evaluated and shown."""
