"""Generated from ``podresources.proto``; see there."""
