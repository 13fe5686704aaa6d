"""The ledger's tables, as a list of forward migrations: entry i brings a file from schema i to schema i + 1.

A released entry is never edited; a change is a new entry at the end. Facts are only ever inserted. Bookkeeping that may
be rewritten is in four tables: open_turns, cursors, health, and tallies (drops by reason, so that no query counts
rows). Facts leave in two ways only: a person deletes a session, which `deletions` and `deleted_turns` record, or has a
note forgotten, whose number is not reused.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID = 0x6F636C72  # "oclr", which distinguishes a ledger from another program's database

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE turns (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, session TEXT, user TEXT NOT NULL, grp TEXT,
        client TEXT NOT NULL, declared TEXT, done INTEGER NOT NULL, trainable INTEGER NOT NULL, at REAL NOT NULL,
        version INTEGER NOT NULL, finish TEXT NOT NULL, scored INTEGER NOT NULL,
        prompt BLOB NOT NULL, reply BLOB NOT NULL,
        prompt_tokens BLOB NOT NULL, reply_tokens BLOB NOT NULL, logprobs BLOB NOT NULL);
    CREATE INDEX turns_session ON turns (session, seq) WHERE session IS NOT NULL;
    CREATE INDEX turns_at ON turns (at);
    CREATE TABLE feedback (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, turn TEXT NOT NULL, score REAL, hint TEXT, edit TEXT,
        source TEXT NOT NULL, at REAL NOT NULL);
    CREATE INDEX feedback_turn ON feedback (turn);
    CREATE TABLE endings (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, user TEXT NOT NULL, at REAL NOT NULL);
    CREATE TABLE records (
        turn TEXT PRIMARY KEY, session TEXT NOT NULL, idx INTEGER NOT NULL, kind TEXT NOT NULL,
        next_state BLOB NOT NULL, trainable INTEGER NOT NULL, extra BLOB NOT NULL) WITHOUT ROWID;

    CREATE TABLE open_turns (turn_seq INTEGER PRIMARY KEY);
    CREATE TABLE outcomes (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, turn TEXT NOT NULL UNIQUE, session TEXT NOT NULL, kind TEXT NOT NULL,
        kind_reason TEXT NOT NULL, confidence REAL NOT NULL, idx INTEGER NOT NULL, parent TEXT,
        next_state BLOB NOT NULL, ended TEXT, evidence TEXT NOT NULL, at REAL NOT NULL);
    CREATE INDEX outcomes_session ON outcomes (session, seq);

    CREATE TABLE verdicts (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, turn TEXT NOT NULL, score REAL, source TEXT NOT NULL,
        votes TEXT NOT NULL, hints TEXT NOT NULL, judge TEXT NOT NULL, prompt_version TEXT, seconds REAL NOT NULL,
        note TEXT NOT NULL, heard INTEGER NOT NULL, at REAL NOT NULL);
    CREATE INDEX verdicts_turn ON verdicts (turn, seq);

    CREATE TABLE drops (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, turn TEXT NOT NULL, stage TEXT NOT NULL, reason TEXT NOT NULL,
        detail TEXT NOT NULL, verdict INTEGER, at REAL NOT NULL);
    CREATE INDEX drops_turn ON drops (turn, seq);
    CREATE TABLE tallies (stage TEXT NOT NULL, reason TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (stage, reason))
        WITHOUT ROWID;
    CREATE TRIGGER drops_tally AFTER INSERT ON drops BEGIN
        INSERT INTO tallies VALUES (new.stage, new.reason, 1)
        ON CONFLICT (stage, reason) DO UPDATE SET n = n + 1; END;

    CREATE TABLE steps (
        number INTEGER PRIMARY KEY, metrics TEXT NOT NULL, seconds REAL NOT NULL, skipped TEXT,
        baselines TEXT NOT NULL, at REAL NOT NULL);
    CREATE TABLE trained (turn TEXT PRIMARY KEY, step INTEGER NOT NULL) WITHOUT ROWID;
    CREATE INDEX trained_step ON trained (step);
    CREATE TABLE versions (
        number INTEGER PRIMARY KEY, parent INTEGER, base TEXT NOT NULL, adapter TEXT, step INTEGER,
        note TEXT NOT NULL, at REAL NOT NULL);
    CREATE TABLE states (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, version INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
        at REAL NOT NULL);
    CREATE INDEX states_version ON states (version, seq);

    CREATE TABLE requests (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, verb TEXT NOT NULL, argument TEXT NOT NULL, at REAL NOT NULL);
    CREATE TABLE cursors (name TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE health (
        loop TEXT PRIMARY KEY, pid INTEGER NOT NULL, host TEXT NOT NULL, state TEXT NOT NULL, at REAL NOT NULL,
        moved INTEGER NOT NULL, failures INTEGER NOT NULL, error TEXT NOT NULL, detail TEXT NOT NULL) WITHOUT ROWID;
    """,
    """
    ALTER TABLE trained ADD COLUMN part TEXT NOT NULL DEFAULT '{}';
    CREATE INDEX turns_group ON turns (grp) WHERE grp IS NOT NULL;
    """,
    """
    CREATE TABLE rulings (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, version INTEGER NOT NULL, against INTEGER NOT NULL,
        decision TEXT NOT NULL, reason TEXT NOT NULL, evidence TEXT NOT NULL, seconds REAL NOT NULL, at REAL NOT NULL);
    CREATE INDEX rulings_version ON rulings (version, seq);
    """,
    """
    CREATE TABLE optouts (session TEXT PRIMARY KEY, user TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
    """,
    """
    CREATE INDEX turns_user ON turns (user, seq);
    """,
    """
    CREATE TABLE session_optouts (
        user TEXT NOT NULL, session TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (user, session)) WITHOUT ROWID;
    INSERT INTO session_optouts SELECT user, session, at FROM optouts;
    DROP TABLE optouts;
    DROP INDEX turns_session;
    CREATE INDEX turns_session ON turns (session, user, seq) WHERE session IS NOT NULL;
    """,
    """
    ALTER TABLE versions ADD COLUMN origin TEXT NOT NULL DEFAULT 'trained';
    ALTER TABLE versions ADD COLUMN source TEXT;
    ALTER TABLE versions ADD COLUMN request INTEGER;
    UPDATE versions SET origin = 'rollback' WHERE note LIKE 'rollback from %';
    UPDATE versions SET origin = 'checkpoint', source = substr(note, length('resumed from ') + 1)
        WHERE note LIKE 'resumed from %';

    ALTER TABLE requests RENAME TO old_requests;
    CREATE TABLE requests (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, command TEXT NOT NULL, version INTEGER, turn TEXT,
        reason TEXT NOT NULL, at REAL NOT NULL);
    INSERT INTO requests
        SELECT seq, CASE verb WHEN 'pin' THEN 'pin version' WHEN 'unpin' THEN 'unpin version' ELSE verb END,
            coalesce(json_extract(argument, '$.to'), json_extract(argument, '$.version')),
            json_extract(argument, '$.turn'), coalesce(json_extract(argument, '$.why'), 'on request'), at
        FROM old_requests;
    DROP TABLE old_requests;

    ALTER TABLE rulings RENAME TO gate_decisions;
    DROP INDEX rulings_version;
    CREATE INDEX gate_decisions_version ON gate_decisions (version, seq);
    ALTER TABLE verdicts RENAME COLUMN heard TO feedback_seen;
    """,
    """
    CREATE TABLE notes (
        number INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,
        vague INTEGER NOT NULL, turn TEXT, at REAL NOT NULL);
    CREATE INDEX notes_user ON notes (user, number);
    CREATE INDEX notes_turn ON notes (turn) WHERE turn IS NOT NULL;
    CREATE TABLE note_changes (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, note INTEGER NOT NULL, state TEXT NOT NULL, author TEXT NOT NULL,
        reason TEXT NOT NULL, replaced_by INTEGER, at REAL NOT NULL);
    CREATE INDEX note_changes_note ON note_changes (note, seq);
    CREATE TABLE note_switches (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, enabled INTEGER NOT NULL, reason TEXT NOT NULL,
        at REAL NOT NULL);
    CREATE INDEX note_switches_user ON note_switches (user, seq);
    ALTER TABLE turns ADD COLUMN note TEXT;
    INSERT INTO cursors SELECT 'note verdicts', coalesce(max(seq), 0) FROM verdicts
        UNION ALL SELECT 'note feedback', coalesce(max(seq), 0) FROM feedback;
    """,
    """
    CREATE TABLE rehearsals (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, note INTEGER NOT NULL, step INTEGER NOT NULL, learned INTEGER NOT NULL,
        evidence TEXT NOT NULL, at REAL NOT NULL);
    CREATE INDEX rehearsals_note ON rehearsals (note, seq);
    """,
    """
    CREATE TABLE session_rewards (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, user TEXT NOT NULL, score REAL, failed TEXT,
        at REAL NOT NULL);
    CREATE INDEX session_rewards_session ON session_rewards (session, user, seq);
    CREATE INDEX endings_session ON endings (session, user);
    ALTER TABLE verdicts ADD COLUMN step REAL;
    ALTER TABLE verdicts ADD COLUMN reward_seen INTEGER NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE deletions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, session TEXT NOT NULL, user TEXT NOT NULL,
        author TEXT NOT NULL, turns INTEGER NOT NULL, notes INTEGER NOT NULL, trained INTEGER NOT NULL,
        versions TEXT NOT NULL, at REAL NOT NULL);
    CREATE INDEX deletions_session ON deletions (session, user, seq);
    CREATE TABLE deleted_turns (turn TEXT PRIMARY KEY) WITHOUT ROWID;
    """,
)


# The ledger's tables in PostgreSQL, as a list of forward migrations; the first makes layout 10, each later one the
# next.
#
# A layout has the same tables and columns as SQLite's, under the same number, so that rows can be copied between the
# two. Booleans are BOOLEAN, text is compared byte by byte, and sequences assign the numbers.
#
# A sequence assigns numbers before a transaction commits, so rows would appear out of order with several gateways. Each
# insert into a table that a work list reads by number therefore holds a lock, shared with all other inserts, from
# before it gets a number until it commits; `ledger_horizon` takes that lock alone for a moment, after which no lower
# number can appear.

FIRST_LAYOUT: Final = 10

ORDER_LOCK: Final = 50
"""the number of the lock on the order of rows"""

_TABLES: Final = """
    CREATE TABLE turns (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, id TEXT COLLATE "C" NOT NULL UNIQUE,
        session TEXT COLLATE "C", "user" TEXT COLLATE "C" NOT NULL, grp TEXT COLLATE "C",
        client TEXT COLLATE "C" NOT NULL, declared TEXT COLLATE "C", done BOOLEAN NOT NULL, trainable BOOLEAN NOT NULL,
        at DOUBLE PRECISION NOT NULL, version BIGINT NOT NULL, finish TEXT COLLATE "C" NOT NULL,
        scored BOOLEAN NOT NULL, prompt BYTEA NOT NULL, reply BYTEA NOT NULL,
        prompt_tokens BYTEA NOT NULL, reply_tokens BYTEA NOT NULL, logprobs BYTEA NOT NULL, note TEXT COLLATE "C");
    ALTER TABLE turns ALTER prompt SET STORAGE EXTERNAL, ALTER reply SET STORAGE EXTERNAL,
        ALTER prompt_tokens SET STORAGE EXTERNAL, ALTER reply_tokens SET STORAGE EXTERNAL,
        ALTER logprobs SET STORAGE EXTERNAL;
    CREATE INDEX turns_session ON turns (session, "user", seq) WHERE session IS NOT NULL;
    CREATE INDEX turns_at ON turns (at);
    CREATE INDEX turns_group ON turns (grp) WHERE grp IS NOT NULL;
    CREATE INDEX turns_user ON turns ("user", seq);
    CREATE TABLE feedback (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, turn TEXT COLLATE "C" NOT NULL,
        score DOUBLE PRECISION, hint TEXT COLLATE "C", edit TEXT COLLATE "C", source TEXT COLLATE "C" NOT NULL,
        at DOUBLE PRECISION NOT NULL);
    CREATE INDEX feedback_turn ON feedback (turn);
    CREATE TABLE endings (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, session TEXT COLLATE "C" NOT NULL,
        "user" TEXT COLLATE "C" NOT NULL, at DOUBLE PRECISION NOT NULL);
    CREATE INDEX endings_session ON endings (session, "user");
    CREATE TABLE session_rewards (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, session TEXT COLLATE "C" NOT NULL,
        "user" TEXT COLLATE "C" NOT NULL, score DOUBLE PRECISION, failed TEXT COLLATE "C",
        at DOUBLE PRECISION NOT NULL);
    CREATE INDEX session_rewards_session ON session_rewards (session, "user", seq);
    CREATE TABLE session_optouts (
        "user" TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C" NOT NULL, at DOUBLE PRECISION NOT NULL,
        PRIMARY KEY ("user", session));
    CREATE TABLE records (
        turn TEXT COLLATE "C" PRIMARY KEY, session TEXT COLLATE "C" NOT NULL, idx BIGINT NOT NULL,
        kind TEXT COLLATE "C" NOT NULL, next_state BYTEA NOT NULL, trainable BOOLEAN NOT NULL, extra BYTEA NOT NULL);

    CREATE TABLE open_turns (turn_seq BIGINT PRIMARY KEY);
    CREATE TABLE outcomes (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, turn TEXT COLLATE "C" NOT NULL UNIQUE,
        session TEXT COLLATE "C" NOT NULL, kind TEXT COLLATE "C" NOT NULL, kind_reason TEXT COLLATE "C" NOT NULL,
        confidence DOUBLE PRECISION NOT NULL, idx BIGINT NOT NULL, parent TEXT COLLATE "C", next_state BYTEA NOT NULL,
        ended TEXT COLLATE "C", evidence TEXT COLLATE "C" NOT NULL, at DOUBLE PRECISION NOT NULL);
    ALTER TABLE outcomes ALTER next_state SET STORAGE EXTERNAL;
    CREATE INDEX outcomes_session ON outcomes (session, seq);

    CREATE TABLE verdicts (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, turn TEXT COLLATE "C" NOT NULL, score DOUBLE PRECISION,
        source TEXT COLLATE "C" NOT NULL, votes TEXT COLLATE "C" NOT NULL, hints TEXT COLLATE "C" NOT NULL,
        judge TEXT COLLATE "C" NOT NULL, prompt_version TEXT COLLATE "C", seconds DOUBLE PRECISION NOT NULL,
        note TEXT COLLATE "C" NOT NULL, feedback_seen BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL,
        step DOUBLE PRECISION, reward_seen BIGINT NOT NULL DEFAULT 0);
    CREATE INDEX verdicts_turn ON verdicts (turn, seq);

    CREATE TABLE drops (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, turn TEXT COLLATE "C" NOT NULL,
        stage TEXT COLLATE "C" NOT NULL, reason TEXT COLLATE "C" NOT NULL, detail TEXT COLLATE "C" NOT NULL,
        verdict BIGINT, at DOUBLE PRECISION NOT NULL);
    CREATE INDEX drops_turn ON drops (turn, seq);
    CREATE TABLE tallies (
        stage TEXT COLLATE "C" NOT NULL, reason TEXT COLLATE "C" NOT NULL, n INTEGER NOT NULL,
        PRIMARY KEY (stage, reason));

    CREATE TABLE steps (
        number BIGINT PRIMARY KEY, metrics TEXT COLLATE "C" NOT NULL, seconds DOUBLE PRECISION NOT NULL,
        skipped TEXT COLLATE "C", baselines TEXT COLLATE "C" NOT NULL, at DOUBLE PRECISION NOT NULL);
    CREATE TABLE trained (
        turn TEXT COLLATE "C" PRIMARY KEY, step BIGINT NOT NULL, part TEXT COLLATE "C" NOT NULL DEFAULT '{}');
    CREATE INDEX trained_step ON trained (step);
    CREATE TABLE rehearsals (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, note BIGINT NOT NULL, step BIGINT NOT NULL,
        learned BOOLEAN NOT NULL, evidence TEXT COLLATE "C" NOT NULL, at DOUBLE PRECISION NOT NULL);
    CREATE INDEX rehearsals_note ON rehearsals (note, seq);
    CREATE TABLE versions (
        number BIGINT PRIMARY KEY, parent BIGINT, base TEXT COLLATE "C" NOT NULL, adapter TEXT COLLATE "C", step BIGINT,
        note TEXT COLLATE "C" NOT NULL, at DOUBLE PRECISION NOT NULL,
        origin TEXT COLLATE "C" NOT NULL DEFAULT 'trained', source TEXT COLLATE "C", request BIGINT);
    CREATE TABLE states (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, version BIGINT NOT NULL,
        state TEXT COLLATE "C" NOT NULL, reason TEXT COLLATE "C" NOT NULL, at DOUBLE PRECISION NOT NULL);
    CREATE INDEX states_version ON states (version, seq);
    CREATE TABLE gate_decisions (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, version BIGINT NOT NULL, against BIGINT NOT NULL,
        decision TEXT COLLATE "C" NOT NULL, reason TEXT COLLATE "C" NOT NULL, evidence TEXT COLLATE "C" NOT NULL,
        seconds DOUBLE PRECISION NOT NULL, at DOUBLE PRECISION NOT NULL);
    CREATE INDEX gate_decisions_version ON gate_decisions (version, seq);

    CREATE TABLE requests (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, command TEXT COLLATE "C" NOT NULL, version BIGINT,
        turn TEXT COLLATE "C", reason TEXT COLLATE "C" NOT NULL, at DOUBLE PRECISION NOT NULL);
    CREATE TABLE notes (
        number BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, "user" TEXT COLLATE "C" NOT NULL,
        kind TEXT COLLATE "C" NOT NULL, text TEXT COLLATE "C" NOT NULL, vague BOOLEAN NOT NULL, turn TEXT COLLATE "C",
        at DOUBLE PRECISION NOT NULL);
    CREATE INDEX notes_user ON notes ("user", number);
    CREATE INDEX notes_turn ON notes (turn) WHERE turn IS NOT NULL;
    CREATE TABLE note_changes (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, note BIGINT NOT NULL, state TEXT COLLATE "C" NOT NULL,
        author TEXT COLLATE "C" NOT NULL, reason TEXT COLLATE "C" NOT NULL, replaced_by BIGINT,
        at DOUBLE PRECISION NOT NULL);
    CREATE INDEX note_changes_note ON note_changes (note, seq);
    CREATE TABLE note_switches (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, "user" TEXT COLLATE "C" NOT NULL,
        enabled BOOLEAN NOT NULL, reason TEXT COLLATE "C" NOT NULL, at DOUBLE PRECISION NOT NULL);
    CREATE INDEX note_switches_user ON note_switches ("user", seq);
    CREATE TABLE cursors (name TEXT COLLATE "C" PRIMARY KEY, seq BIGINT NOT NULL);
    CREATE TABLE health (
        loop TEXT COLLATE "C" PRIMARY KEY, pid BIGINT NOT NULL, host TEXT COLLATE "C" NOT NULL,
        state TEXT COLLATE "C" NOT NULL, at DOUBLE PRECISION NOT NULL, moved BIGINT NOT NULL, failures BIGINT NOT NULL,
        error TEXT COLLATE "C" NOT NULL, detail TEXT COLLATE "C" NOT NULL);
    """

_TALLY: Final = """
    CREATE FUNCTION ledger_tally() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO tallies VALUES (new.stage, new.reason, 1)
            ON CONFLICT (stage, reason) DO UPDATE SET n = tallies.n + 1;
        RETURN NULL;
    END $$;
    CREATE TRIGGER drops_tally AFTER INSERT ON drops FOR EACH ROW EXECUTE FUNCTION ledger_tally();
    """

_ORDER: Final = f"""
    CREATE FUNCTION ledger_in_order() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock_shared({APPLICATION_ID}, {ORDER_LOCK});
        RETURN NULL;
    END $$;
    CREATE TRIGGER turns_in_order BEFORE INSERT ON turns EXECUTE FUNCTION ledger_in_order();
    CREATE TRIGGER feedback_in_order BEFORE INSERT ON feedback EXECUTE FUNCTION ledger_in_order();
    CREATE TRIGGER endings_in_order BEFORE INSERT ON endings EXECUTE FUNCTION ledger_in_order();
    CREATE TRIGGER session_rewards_in_order BEFORE INSERT ON session_rewards EXECUTE FUNCTION ledger_in_order();
    CREATE TRIGGER requests_in_order BEFORE INSERT ON requests EXECUTE FUNCTION ledger_in_order();
    CREATE FUNCTION ledger_horizon(name text, after bigint) RETURNS bigint
        LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
    DECLARE newest bigint;
    BEGIN
        EXECUTE format('SELECT coalesce(max(seq), 0) FROM %I', name) INTO newest;
        IF newest > after THEN
            PERFORM pg_advisory_xact_lock({APPLICATION_ID}, {ORDER_LOCK});
            EXECUTE format('SELECT max(seq) FROM %I', name) INTO newest;
        END IF;
        RETURN greatest(newest, after);
    EXCEPTION WHEN lock_not_available THEN
        RETURN after;
    END $$;
    """

_MARK: Final = "CREATE TABLE ledger_layout (layout BIGINT NOT NULL);\nINSERT INTO ledger_layout VALUES (0);"

_DELETIONS: Final = """
    CREATE TABLE deletions (
        seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, id TEXT COLLATE "C" NOT NULL,
        session TEXT COLLATE "C" NOT NULL, "user" TEXT COLLATE "C" NOT NULL, author TEXT COLLATE "C" NOT NULL,
        turns BIGINT NOT NULL, notes BIGINT NOT NULL, trained BIGINT NOT NULL, versions TEXT COLLATE "C" NOT NULL,
        at DOUBLE PRECISION NOT NULL);
    CREATE INDEX deletions_session ON deletions (session, "user", seq);
    CREATE TABLE deleted_turns (turn TEXT COLLATE "C" PRIMARY KEY);
    """

POSTGRES_MIGRATIONS: tuple[str, ...] = (_TABLES + _TALLY + _ORDER + _MARK, _DELETIONS)
