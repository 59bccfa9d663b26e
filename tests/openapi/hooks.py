"""What schemathesis must know of this API: long polls are not waited for."""
import re

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    wait = (case.query or {}).get("wait")
    if isinstance(wait, str) and re.fullmatch(r"[0-9]+(\.[0-9]*)?s?", wait) and float(wait.rstrip("s")) <= 120:
        case.query["wait"] = "0"


@schemathesis.serializer("application/toml", "text/toml")
def toml(context, value):
    """The schema of a policy is a text: it is sent as it is."""
    return value if isinstance(value, bytes) else str(value).encode()
