"""Conversations to midtrain on, and how each task is scored."""
