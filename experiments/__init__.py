"""The evidence: one folder per question, with its code, its results, its figures and its README."""
