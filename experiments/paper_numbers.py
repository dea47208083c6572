"""The paper's own numbers, beside which ours stand (its tables from 2 on). Cost in tera-eFLOPs a query."""

from typing import Final

Cell = tuple[float, float, float]  # reward, accuracy in percent, cost

MAIN: Final[dict[str, dict[str, dict[str, Cell]]]] = {
    "cost_sensitive": {
        "random": {
            "tts": (0.6937, 42.12, 76.7),
            "routing": (0.4733, 43.50, 2302.9),
            "uis": (0.5731, 53.00, 1358.7),
        },
        "greedy": {
            "tts": (0.7184, 43.75, 54.0),
            "routing": (0.5873, 34.12, 202.5),
            "uis": (0.5589, 45.00, 660.6),
        },
        "mlp": {
            "tts": (0.7006, 41.75, 48.6),
            "routing": (0.6161, 29.75, 154.7),
            "uis": (0.6301, 47.00, 644.0),
        },
        "knn": {
            "tts": (0.6966, 36.50, 49.0),
            "routing": (0.5819, 34.62, 522.9),
            "uis": (0.6590, 41.38, 326.0),
        },
        "neural_ucb": {
            "tts": (0.6984, 42.00, 70.6),
            "routing": (0.4849, 42.62, 2216.6),
            "uis": (0.5880, 50.75, 1558.2),
        },
        "ts": {
            "tts": (0.7022, 44.50, 67.9),
            "routing": (0.4541, 48.37, 2992.7),
            "uis": (0.5549, 52.12, 1762.8),
        },
        "uniscale": {
            "tts": (0.7535, 46.50, 23.3),
            "routing": (0.6196, 29.00, 82.9),
            "uis": (0.7079, 46.88, 49.4),
        },
        "oracle": {
            "tts": (0.8297, 54.87, 10.5),
            "routing": (0.6226, 37.50, 106.4),
            "uis": (0.8337, 57.38, 10.6),
        },
    },
    "quality_priority": {
        "random": {
            "tts": (0.5726, 42.25, 73.2),
            "routing": (0.5055, 43.25, 2370.4),
            "uis": (0.6175, 52.88, 1359.8),
        },
        "greedy": {
            "tts": (0.6184, 46.50, 67.6),
            "routing": (0.5459, 50.00, 2643.4),
            "uis": (0.5780, 52.88, 3402.1),
        },
        "mlp": {
            "tts": (0.5752, 42.38, 46.1),
            "routing": (0.4963, 42.00, 1807.3),
            "uis": (0.6055, 47.50, 353.4),
        },
        "knn": {
            "tts": (0.5146, 36.25, 47.8),
            "routing": (0.5273, 47.38, 2046.8),
            "uis": (0.5807, 46.75, 1113.4),
        },
        "neural_ucb": {
            "tts": (0.5580, 41.12, 68.4),
            "routing": (0.4991, 42.75, 2679.1),
            "uis": (0.5929, 50.25, 1819.7),
        },
        "ts": {
            "tts": (0.5901, 44.88, 63.9),
            "routing": (0.5292, 47.00, 3065.1),
            "uis": (0.6243, 54.00, 1875.7),
        },
        "uniscale": {
            "tts": (0.6450, 48.12, 26.6),
            "routing": (0.5347, 47.87, 1924.6),
            "uis": (0.6306, 57.37, 1374.7),
        },
        "oracle": {
            "tts": (0.7426, 59.12, 20.3),
            "routing": (0.6121, 56.12, 1911.1),
            "uis": (0.7924, 68.12, 115.7),
        },
    },
}
MAIN_STD: Final[dict[str, dict[str, dict[str, Cell]]]] = {  # standard deviations over its five seeds
    "cost_sensitive": {
        "random": {"tts": (0.0052, 1.22, 9.7), "routing": (0.0076, 1.29, 190.6), "uis": (0.0143, 1.7, 220.1)},
        "greedy": {
            "tts": (0.0383, 1.58, 30.7),
            "routing": (0.0406, 6.63, 145.9),
            "uis": (0.0616, 4.66, 219.0),
        },
        "mlp": {"tts": (0.0486, 6.91, 20.4), "routing": (0.0071, 2.08, 105.6), "uis": (0.1032, 5.02, 769.8)},
        "knn": {"tts": (0.0055, 1.51, 3.4), "routing": (0.0047, 3.68, 65.6), "uis": (0.0108, 2.83, 94.4)},
        "neural_ucb": {
            "tts": (0.0185, 2.14, 13.8),
            "routing": (0.0194, 2.66, 726.5),
            "uis": (0.0291, 1.5, 1120.7),
        },
        "ts": {"tts": (0.0075, 1.55, 11.3), "routing": (0.0086, 1.16, 395.3), "uis": (0.0102, 2.11, 389.2)},
        "uniscale": {"tts": (0.0071, 1.02, 2.7), "routing": (0.0039, 1.61, 4.5), "uis": (0.011, 1.72, 11.6)},
        "oracle": {"tts": (0.0031, 0.92, 0.3), "routing": (0.0044, 1.85, 6.1), "uis": (0.003, 0.92, 0.3)},
    },
    "quality_priority": {
        "random": {
            "tts": (0.0056, 1.09, 7.0),
            "routing": (0.0095, 1.33, 278.9),
            "uis": (0.0116, 1.79, 219.6),
        },
        "greedy": {
            "tts": (0.0435, 2.46, 44.4),
            "routing": (0.0152, 2.4, 916.7),
            "uis": (0.0441, 2.26, 1305.0),
        },
        "mlp": {"tts": (0.0609, 5.18, 19.9), "routing": (0.0124, 3.25, 1238.6), "uis": (0.0329, 4.95, 340.3)},
        "knn": {"tts": (0.0107, 2.27, 4.5), "routing": (0.0149, 1.99, 327.9), "uis": (0.018, 2.72, 253.0)},
        "neural_ucb": {
            "tts": (0.0087, 0.25, 6.1),
            "routing": (0.0199, 3.66, 594.7),
            "uis": (0.0132, 2.61, 838.1),
        },
        "ts": {"tts": (0.0089, 1.55, 8.4), "routing": (0.0124, 2.0, 495.0), "uis": (0.005, 1.09, 396.7)},
        "uniscale": {
            "tts": (0.0265, 1.05, 9.6),
            "routing": (0.0183, 2.64, 969.1),
            "uis": (0.0212, 1.94, 437.5),
        },
        "oracle": {"tts": (0.0047, 0.75, 0.7), "routing": (0.0093, 2.07, 86.4), "uis": (0.0048, 0.79, 3.0)},
    },
}
BEST_ROUTE: Final = {
    "cost_sensitive": {"uniscale": (0.5500, 35.00, 1119.8), "oracle": (0.6279, 42.50, 103.6)},
    "quality_priority": {"uniscale": (0.5507, 50.63, 3537.7), "oracle": (0.6504, 59.38, 3163.9)},
}
BEST_ROUTE_UIS: Final = {  # the joint space's columns of the same table, of one seed
    "cost_sensitive": {"uniscale": (0.6973, 46.25, 48.2), "oracle": (0.8335, 56.87, 10.4)},
    "quality_priority": {"uniscale": (0.6326, 57.50, 1303.3), "oracle": (0.7899, 67.50, 113.9)},
}
SEMANTICS: Final = {  # regret at 130, at 210, accuracy, cost
    "quality_priority": {"uniscale": (20.38, 33.98, 57.50, 1303.3), "one_hot": (23.18, 38.24, 50.62, 906.4)},
    "cost_sensitive": {"uniscale": (23.43, 34.43, 46.25, 48.2), "one_hot": (26.74, 41.56, 46.88, 629.7)},
}
DENSE: Final = {  # accuracy, cost
    "quality_priority": {"dense": (57.50, 1303.3), "binary": (51.88, 2674.9)},
    "cost_sensitive": {"dense": (46.25, 48.2), "binary": (43.75, 47.4)},
}
EARLY_EXIT: Final = {  # accuracy, TFLOPs, TB, tera-eFLOPs
    "without": (65.43, 667.4, 26.8, 4851.4),
    "with": (64.52, 85.0, 5.9, 1002.9),
}
DRIFTS: Final = {  # regret at 130, at 210, accuracy, cost
    "add": {"uniscale": (27.43, 38.52, 43.75, 59.6), "knn": (34.42, 51.73, 45.62, 805.1)},
    "remove": {"uniscale": (27.56, 41.15, 53.12, 255.9), "knn": (35.52, 57.49, 50.62, 1027.9)},
    "q_to_c": {"uniscale": (27.59, 38.86, 51.25, 347.7), "knn": (27.98, 46.91, 43.13, 874.3)},
    "c_to_q": {"uniscale": (24.71, 36.77, 50.62, 220.8), "knn": (30.15, 48.11, 43.75, 452.4)},
}
VERIFIERS: Final = {  # reward, accuracy, cost: (larger, smaller)
    "cost_sensitive": {
        "knn": ((0.6615, 41.25, 249.8), (0.6542, 39.37, 148.7)),
        "uniscale": ((0.7092, 48.13, 79.9), (0.6973, 46.25, 48.2)),
    },
    "quality_priority": {
        "knn": ((0.6128, 55.63, 1235.3), (0.5740, 43.75, 996.2)),
        "uniscale": ((0.6562, 63.75, 1485.8), (0.6326, 57.50, 1303.3)),
    },
}
SCORES: Final = {"auroc_pooled": 0.8067, "point_biserial": 0.5061}
SCORES_OF: Final = {"right": (0.8818, 0.1830), "wrong": (0.5961, 0.2934)}  # mean, standard deviation
CODING: Final = {"knn": (0.7943, 53.13, 14039.5), "uniscale": (0.8125, 52.50, 5619.6)}
LATENCY: Final = {  # seconds over 160 rounds, percent
    "query_embedding": (16.79, 0.77),
    "bandit": (3.15, 0.14),
    "generation": (1941.84, 88.82),
    "verification": (175.31, 8.02),
    "rest_of_search": (49.23, 2.25),
    "total": (2186.31, 100.0),
}
