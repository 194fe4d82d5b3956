"""Classifier and regressor in scikit-learn's conventions, without importing it."""
