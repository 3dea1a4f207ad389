"""What the demo and the tests need of the sqlite3 program, where it is not installed: native.py DATABASE SQL."""

import sqlite3
import sys

database, sql = sys.argv[1:]
connection = sqlite3.connect(database, timeout=0, isolation_level=None)
statement = ""
try:
    for piece in sql.split(";"):
        statement += piece + ";"
        if sqlite3.complete_statement(statement):  # not so inside a trigger or a string
            for row in connection.execute(statement):
                print("|".join("" if value is None else str(value) for value in row))
            statement = ""
except sqlite3.Error as error:
    sys.exit(f"Error: {error}")
