"""The tools of the desk, and their data. Each conversation gets a copy of data.json."""

from pytest_trace2evolve import World


class DeskTools:
    db: dict

    def find_loan(self, loan_id: str) -> dict:
        """Look up a loan by its number, such as L1."""
        return self.db["loans"][loan_id]

    def renew_loan(self, loan_id: str) -> dict:
        """Extend a loan by three weeks."""
        self.db["loans"][loan_id]["due_week"] += 3
        return self.db["loans"][loan_id]


world = World.from_tools(DeskTools, data="data.json")
