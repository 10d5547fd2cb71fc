"""One file a verb: reads options, calls one function elsewhere, prints what it returned."""
