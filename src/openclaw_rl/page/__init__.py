"""The page: see it learn, and steer it, in a browser.

    html        markup that cannot be broken out of: text is escaped, always
    door        who comes in: loopback without a key, else a login; other sites and other names are turned away
    frame       what every view stands in: the navigation, what is live, alarms
    talk learning ...   a view each: what `openclaw_rl.views` reads of the ledger, as markup
    actions     what a person does there; each is a call of the public API with that person's key
    site        all of it as an ASGI app

It is a process of its own that nobody waits for: it reads the ledger and calls the API, and can be killed at any time.
Text of a model or a user reaches the browser as text and is put there as text: no markup in it ever lives.
"""
