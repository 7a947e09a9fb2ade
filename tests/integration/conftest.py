import aiohttp
import pytest


@pytest.fixture
def post():
    """One raw JSON-RPC call: the decoded answer, whatever it is."""

    async def send(url, method, params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            return await response.json()

    return send
