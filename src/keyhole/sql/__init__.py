"""SQL over live states, by DuckDB: `run` is where it begins. Needs the extra `sql`."""
