"""Why a step went wrong: its rows by loss, steps taken again without some documents, the documents behind a spike."""
