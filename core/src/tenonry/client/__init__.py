"""The front end: takes requests, talks to engines, turns outputs into streams. The user's process."""
