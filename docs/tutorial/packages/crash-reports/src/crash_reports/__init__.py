"""An engine recovery for tenonry that writes a report of each crash."""
