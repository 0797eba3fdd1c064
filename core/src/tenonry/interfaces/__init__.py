"""The extension points of the kernel: one module and one abstract class per kind.

Import the class from its module (`from tenonry.interfaces.scheduler import Scheduler`). The `interface_version` of the
class is that of the interface; a plugin declares the version it was written for, and this kernel supports the current
and the previous version.
"""
