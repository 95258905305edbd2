"""A scrape file for Prometheus, and a dashboard for Grafana: data, no code."""
