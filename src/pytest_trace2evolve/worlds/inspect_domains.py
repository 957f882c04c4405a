"""The τ² domains of the provider `inspect_evals`: the locations of their parts, and the types of their tools.

The types come from upstream's toolkits, because the port does not include them.
"""

import functools
from dataclasses import dataclass, field, replace

from pytest_trace2evolve.records.score import ToolType


@dataclass(frozen=True)
class Toolkit:
    """The toolkit of one side.

    Attributes:
        module, name: The module and the name of the toolkit's class.
        wrappers, wrapper_list: The module of the tool wrappers, and the name of the list of wrappers.
        wrapper_prefix: The prefix that the port puts before the names of wrappers.
        database: The toolkit's database file.
        tools: The types of the offered tools.
        hidden_tools: The types of banking's discoverable tools, which can be called but are not offered.
        generic_writers: Generic tools that change a database.
        record_tools: Tools that return a record as a dictionary.
        sorted_tools: Tools whose result upstream sorts by key, but the port does not.
    """

    module: str
    name: str
    wrappers: str
    wrapper_list: str
    database: str
    tools: dict[str, ToolType]
    hidden_tools: dict[str, ToolType] = field(default_factory=dict)
    generic_writers: frozenset[str] = frozenset()
    record_tools: frozenset[str] = frozenset()
    sorted_tools: frozenset[str] = frozenset()
    wrapper_prefix: str = ""

    @functools.cached_property
    def callable_tools(self) -> frozenset[str]:
        return frozenset(self.tools | self.hidden_tools)

    @functools.cached_property
    def writer_tools(self) -> frozenset[str]:
        types = self.tools | self.hidden_tools
        return self.generic_writers.union(
            name for name, tool_type in types.items() if tool_type is ToolType.WRITE
        )


@dataclass(frozen=True)
class Domain:
    """One domain.

    Attributes:
        folder: The domain's data folder.
        policy, solo_policy: Pairs of a tag and the file whose text it encloses; an empty tag adds nothing.
        is_database_shared: Whether both toolkits use the same database.
        sync_class: Module and name of the class whose `sync_tools` couples the toolkits.
    """

    folder: str
    agent: Toolkit
    policy: tuple[tuple[str, str], ...]
    user: Toolkit | None = None
    solo_policy: tuple[tuple[str, str], ...] = ()
    is_database_shared: bool = False
    sync_class: tuple[str, str] | None = None


def _types_by_tool(**tools_by_type: str) -> dict[str, ToolType]:
    return {
        name: ToolType(type_name)
        for type_name, tool_names in tools_by_type.items()
        for name in tool_names.split()
    }


_GENERIC_TOOLS = "calculate transfer_to_human_agents"

RETAIL = Domain(
    folder="retail",
    policy=(("", "policy.txt"),),
    agent=Toolkit(
        module="inspect_evals.tau2.retail.RetailAgentTools",
        name="RetailAgentTools",
        wrappers="inspect_evals.tau2.retail.tools",
        wrapper_list="all_retail_tools",
        database="db.json.gz",
        tools=_types_by_tool(
            generic=_GENERIC_TOOLS,
            read="find_user_id_by_name_zip find_user_id_by_email get_order_details get_product_details "
            "get_user_details list_all_product_types",
            write="cancel_pending_order exchange_delivered_order_items modify_pending_order_address "
            "modify_pending_order_items modify_pending_order_payment modify_user_address "
            "return_delivered_order_items",
        ),
        sorted_tools=frozenset({"list_all_product_types"}),
    ),
)

AIRLINE = Domain(
    folder="airline",
    policy=(("", "policy.txt"),),
    agent=Toolkit(
        module="inspect_evals.tau2.airline.AirlineAgentTools",
        name="AirlineAgentTools",
        wrappers="inspect_evals.tau2.airline.tools",
        wrapper_list="all_airline_tools",
        database="db.json.gz",
        tools=_types_by_tool(
            generic=_GENERIC_TOOLS,
            read="get_reservation_details get_user_details list_all_airports search_direct_flight "
            "search_onestop_flight get_flight_status",
            write="book_reservation cancel_reservation send_certificate update_reservation_baggages "
            "update_reservation_flights update_reservation_passengers",
        ),
    ),
)

TELECOM = Domain(
    folder="telecom",
    policy=(("main_policy", "main_policy.txt"), ("tech_support_policy", "tech_support_manual.txt")),
    solo_policy=(("main_policy", "main_policy_solo.txt"), ("tech_support_policy", "tech_support_manual.txt")),
    sync_class=("inspect_evals.tau2.telecom.environment", "Environment"),
    agent=Toolkit(
        module="inspect_evals.tau2.telecom.TelecomAgentTools",
        name="TelecomAgentTools",
        wrappers="inspect_evals.tau2.telecom.tools",
        wrapper_list="all_telecom_agent_tools",
        database="db.toml",
        record_tools=frozenset({"get_details_by_id"}),
        tools=_types_by_tool(
            generic="transfer_to_human_agents",
            read="get_customer_by_phone get_customer_by_id get_customer_by_name get_details_by_id "
            "get_bills_for_customer get_data_usage",
            write="suspend_line resume_line send_payment_request enable_roaming disable_roaming refuel_data",
        ),
    ),
    user=Toolkit(
        module="inspect_evals.tau2.telecom.TelecomUserTools",
        name="TelecomUserTools",
        wrappers="inspect_evals.tau2.telecom.user_tools",
        wrapper_list="all_telecom_user_tools",
        database="user_db.toml",
        tools=_types_by_tool(
            read="check_status_bar check_network_status check_network_mode_preference run_speed_test "
            "check_sim_status check_data_restriction_status check_apn_settings check_wifi_status "
            "check_wifi_calling_status check_vpn_status check_installed_apps check_app_status "
            "check_app_permissions can_send_mms check_payment_request",
            write="set_network_mode_preference toggle_airplane_mode reseat_sim_card toggle_data "
            "toggle_roaming toggle_data_saver_mode set_apn_settings reset_apn_settings toggle_wifi "
            "toggle_wifi_calling connect_vpn disconnect_vpn grant_app_permission reboot_device make_payment",
        ),
    ),
)

BANKING = Domain(
    folder="banking_knowledge",
    policy=(("", "prompts/grep_only.md"),),
    is_database_shared=True,
    agent=Toolkit(
        module="inspect_evals.tau2.banking.BankingAgentTools",
        name="BankingAgentTools",
        wrappers="inspect_evals.tau2.banking.tools",
        wrapper_list="all_banking_agent_tools",
        wrapper_prefix="banking_",
        database="db.json",
        generic_writers=frozenset({"give_discoverable_user_tool", "unlock_discoverable_agent_tool"}),
        tools=_types_by_tool(
            generic="transfer_to_human_agents give_discoverable_user_tool unlock_discoverable_agent_tool",
            read="get_current_time get_user_information_by_id get_user_information_by_name "
            "get_user_information_by_email get_referrals_by_user get_credit_card_transactions_by_user "
            "get_credit_card_accounts_by_user list_discoverable_agent_tools grep",
            write="change_user_email log_verification call_discoverable_agent_tool",
        ),
        hidden_tools=_types_by_tool(
            generic="initial_transfer_to_human_agent_0218 initial_transfer_to_human_agent_1822 "
            "emergency_credit_bureau_incident_transfer_1114",
            read="get_debit_dispute_status_7483 get_atm_deposit_images_8473 get_user_dispute_history_7291 "
            "get_pending_replacement_orders_5765 get_closure_reason_history_8293 "
            "get_credit_limit_increase_history_4829 get_payment_history_6183 "
            "get_all_user_accounts_by_user_id_3847 get_bank_account_transactions_9173 "
            "get_debit_cards_by_account_id_7823",
            write="example_agent_tool_0000 update_transaction_rewards_3847 "
            "file_credit_card_transaction_dispute_4829 file_debit_card_transaction_dispute_6281 "
            "set_debit_card_recurring_block_7382 order_replacement_credit_card_7291 "
            "log_credit_card_closure_reason_4521 apply_statement_credit_8472 "
            "apply_credit_card_account_flag_6147 close_credit_card_account_7834 "
            "pay_credit_card_from_checking_9182 submit_credit_limit_increase_request_7392 "
            "approve_credit_limit_increase_5847 deny_credit_limit_increase_5848 open_bank_account_4821 "
            "close_bank_account_7392 transfer_funds_between_bank_accounts_7291 "
            "apply_checking_account_credit_5829 apply_savings_account_credit_6831 "
            "submit_interest_discrepancy_report_7294 order_debit_card_5739 activate_debit_card_8291 "
            "activate_debit_card_8292 activate_debit_card_8293 close_debit_card_4721 freeze_debit_card_3892 "
            "unfreeze_debit_card_3893 clear_debit_card_fraud_alert_4892 reset_debit_card_pin_6284 "
            "change_debit_card_pin_6285 request_temporary_debit_card_limit_increase_8374",
        ),
    ),
    user=Toolkit(
        module="inspect_evals.tau2.banking.BankingUserTools",
        name="BankingUserTools",
        wrappers="inspect_evals.tau2.banking.user_tools",
        wrapper_list="all_banking_user_tools",
        wrapper_prefix="banking_",
        database="db.json",
        tools=_types_by_tool(
            read="list_discoverable_user_tools",
            write="apply_for_credit_card submit_referral call_discoverable_user_tool "
            "request_human_agent_transfer submit_transaction",
        ),
        hidden_tools=_types_by_tool(
            read="get_card_last_4_digits",
            write="submit_cash_back_dispute_0589 get_referral_link deposit_check_3847",
        ),
    ),
)

DOMAINS = {domain.folder: domain for domain in (RETAIL, AIRLINE, TELECOM, BANKING)}
DOMAINS["telecom-workflow"] = replace(
    TELECOM,
    policy=(("main_policy", "main_policy.txt"), ("tech_support_policy", "tech_support_workflow.txt")),
    solo_policy=(
        ("main_policy", "main_policy_solo.txt"),
        ("tech_support_policy", "tech_support_workflow_solo.txt"),
    ),
)
"""The domains by name. Telecom has two, which differ in the policy for technical support."""
