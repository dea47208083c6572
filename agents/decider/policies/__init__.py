"""The policies, behind one protocol and with the paper's names.

policy       the protocol
base         the values that cross it
registry     policies by name, each with its options
build        the one factory
learner      what all policies share besides their mathematics
choosing     from scores to a choice and its propensity
envelope     a policy's state as bytes
exploration  recorded randomisation around any policy
history      all observations, for policies that retrain on them

linear       LinUCB, Greedy, Thompson sampling, forgetting
neural       MLP, NeuralUCB
contextual   ridge regression on few interacting coordinates
knn          k-NN
uniform      Random
"""
