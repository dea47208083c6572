"""The Kafka runtime: the only code that knows faust, aiokafka and kafka-python, and works around their defects."""
