import sys

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

session = requests.Session()
session.get(sys.argv[1] + "/requests")
for name, retry in (("urllib3 Retry(3)", Retry(3)), ("urllib3 Retry(3) with 403 and 429", Retry(3, status_forcelist=[403, 429]))):
    session.mount("http://", HTTPAdapter(max_retries=retry))
    try:
        session.get(sys.argv[1] + "/" + name)
    except requests.exceptions.RetryError:
        pass
