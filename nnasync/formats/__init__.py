"""What importers and drivers share of foreign formats: tables of operators and types."""
