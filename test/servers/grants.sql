-- The rights of the service's user on one shard: its own database, and to list prepared XA transactions.
CREATE USER {{.User}} IDENTIFIED BY {{.Password}};
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP, REFERENCES, CREATE VIEW, SHOW VIEW ON {{.Database}}.* TO {{.User}};
GRANT XA_RECOVER_ADMIN ON *.* TO {{.User}};
