"""Parts of the kernel's own tests: engines made of fakes, plugins that fail on request, roles of child processes.

`engine` builds an engine core in this process, `served` an `AsyncLLM` over an engine process, and `peer` a scripted
front end, for frames that no client sends. `faulty` holds plugins that raise on request, `plugins` sources of plugins
as authors write them, `site` a folder that distributions are installed into. `roles` and `launch_roles` are run by
child processes.
"""
