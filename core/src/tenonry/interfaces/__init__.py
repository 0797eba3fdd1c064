"""The extension points of the kernel: one module and one abstract class per kind.

Import the class from its module (`from tenonry.interfaces.scheduler import Scheduler`). Each module has `VERSION`, the
interface's version, and `SUPPORTED`, the versions this kernel can drive. A plugin states the one it was written
for as `interface_version`.
"""
