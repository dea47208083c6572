"""The price λ of objectives by mean cost and by accuracy.

pacer      accounts of these objectives, and what their price aims at
forecast   what would be chosen for recent queries at any λ, and the λ that meets a target
outlook    the recent queries, λ now, and what cannot be met
"""
