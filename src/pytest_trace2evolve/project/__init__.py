"""A project's files: suites, candidates, locks, adapters, policies and hooks."""
