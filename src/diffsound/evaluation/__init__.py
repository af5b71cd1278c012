"""The paper's metrics, tables and studies."""
