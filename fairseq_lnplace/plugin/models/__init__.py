"""The three kinds of models, their options and named sizes."""
