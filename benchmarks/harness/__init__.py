"""What the benchmark scripts share: texts, engines in processes of their own, records and tables."""
