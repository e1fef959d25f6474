"""Trainings read back from their folders, and the page that shows them side by side."""
