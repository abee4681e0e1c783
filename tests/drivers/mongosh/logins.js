// Logs in by each of the cases in $SHEAF_LOGINS (see ../logins) as a person at the shell does.

for (const { name, uri } of JSON.parse(process.env.SHEAF_LOGINS).cases) {
  try {
    const { authInfo } = connect(uri).adminCommand({ connectionStatus: 1 });
    const [{ user, db }] = authInfo.authenticatedUsers;
    print(`${name}\t${user}@${db}`);
  } catch (error) {
    print(`${name}\trefused\t${error.message}`);
  }
}
