"""The extension points of the kernel: one module and one abstract class per kind.

Import the class from its module (`from tenonry.interfaces.scheduler import Scheduler`). The `interface_version` of the
class is the interface's own; a plugin states the one it was written for, and this kernel drives that one and the one
before it.
"""
