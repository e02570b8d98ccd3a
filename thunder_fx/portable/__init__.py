"""What reproducers carry as source, since they run where thunder_fx is not installed; thunder_fx itself needs it too.

So a module here imports torch and the standard library alone, and no name in it may be one of another's.
"""
