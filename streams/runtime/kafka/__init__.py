"""The Kafka runtime: all that knows faust, aiokafka and kafka-python, and all that corrects them."""
