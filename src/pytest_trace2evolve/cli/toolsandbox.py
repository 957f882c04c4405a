"""The command `toolsandbox export`."""

import argparse

from pytest_trace2evolve.cli.common import nearest_project, progress_bar, worlds_of


def export(options: argparse.Namespace) -> int:
    """Export ToolSandbox from a clone, and add its suites to the project, if there is one."""
    from pytest_trace2evolve.worlds.toolsandbox.dump import export_folder, read_dump
    from pytest_trace2evolve.worlds.toolsandbox.export import SUITES, suite_text
    from pytest_trace2evolve.worlds.toolsandbox.export import export as export_clone

    folder = export_folder()
    with progress_bar("ToolSandbox", None) as update:
        manifest = export_clone(options.path, folder, update)
    dump = read_dump(folder, manifest.scenarios)
    print(f"exported: {len(dump.scenarios)} scenarios of {len(dump.bases)} bases to {folder}")
    project = nearest_project(options)
    if project is None:
        print("no project here: run the command in a project to add its suites")
        return 0
    for name, domain in SUITES.items():
        path = project.suites_folder / f"{name}.toml"
        if not path.exists():
            path.write_text(suite_text(domain), encoding="utf-8")
    project.renew_lock(worlds_of(project), list(SUITES))
    print(f"suites: {', '.join(SUITES)}; written: {project.lock_path}")
    return 0
