"""The page: a browser view of learning, with controls to steer it.

    html        markup that cannot be broken out of: text is always escaped; the frame: navigation, live version, alarms
    door        access: loopback without a key, else a login; other sites and other host names are refused
    drawing     a person's views, drawn from the ledger
    talk learning ...   a module for each view: data from `openclaw_rl.views` as markup
    actions     a person's actions; each is a call of the public API with that person's key
    site        all of it as an ASGI app

It is a separate process that no other process waits for: it reads the ledger and calls the API, and can be killed at
any time. Text from a model or a user reaches the browser as text and is inserted as text: markup in it has no effect.
"""
