"""What the contextual policy takes from history.

table      history as a table of outcomes
fitting    each action's anchor, and the query transform
lessons    a policy without a prior relearns from its own first outcomes
prior      a complete state made from history, to begin from
"""
