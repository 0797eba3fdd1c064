"""An executor for tenonry that logs slow steps of its one rank."""
