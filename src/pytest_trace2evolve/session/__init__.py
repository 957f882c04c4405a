"""One run from plan to verdict, and the commands on what runs leave behind."""
