"""Reads production logs of conversations, replaces personal data, and drafts and reviews tasks."""
