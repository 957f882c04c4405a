"""Records: frozen data that flows from task to verdict. Import them from their modules."""
