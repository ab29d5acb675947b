"""The Dramatiq broker: the data plane. `dramatiq workers.dramatiq_app --processes 1 --threads 2`.

Batches of augmentation jobs and outgoing notifications. Each batch is a row with a state; a message only names it.
"""

import os
from importlib import import_module
from importlib.util import find_spec

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

import django
import dramatiq
from django.apps import apps
from django.conf import settings
from dramatiq import Broker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker

ACTOR_MODULES = ("workers.pulse", "workers.augmentation.actors", "workers.notify")
QUEUES = ("high", "normal", "low")

if not apps.ready and not apps.loading:
    django.setup()

broker: Broker
if settings.REDIS_URL.startswith("memory:"):  # under pytest without a server: messages stay in this process
    broker = StubBroker()
else:
    broker = RedisBroker(url=settings.REDIS_URL, namespace=f"{settings.REDIS_NAMESPACE}:dramatiq")
dramatiq.set_broker(broker)
for queue in QUEUES:
    broker.declare_queue(queue)
for module in ACTOR_MODULES:
    if find_spec(module):
        import_module(module)
