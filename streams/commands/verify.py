"""placeholder"""
COMMANDS: list = []
