"""Plain data that every floor shares: policies, node descriptions, messages, parameters, errors."""
