"""A runner feature for tenonry that measures hidden states."""
