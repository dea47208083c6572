"""The policies behind one protocol, named by the paper's words.

base         the protocol, and the values that cross it
registry     policies by name, each with its options
build        the one factory
learner      what every policy has beside its mathematics
choosing     from scores to a choice and its propensity
envelope     a policy's state as bytes
exploration  recorded randomisation around any policy
history      observations kept, for policies that learn from all of them again

linear       LinUCB, Greedy, Thompson sampling, forgetting
neural       MLP, NeuralUCB
contextual   ridge regression on few interacting coordinates
knn          k-NN
uniform      Random
"""
