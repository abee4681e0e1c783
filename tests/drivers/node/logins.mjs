// Logs in by each of the cases in $SHEAF_LOGINS (see ../logins) through the Node.js driver.

import { createRequire } from 'node:module';

// The driver is installed in a cache folder, outside of this repository.
const require = createRequire(`${process.env.SHEAF_NODE_HOME ?? import.meta.dirname}/package.json`);
const { MongoClient } = require('mongodb');

for (const { name, uri, token } of JSON.parse(process.env.SHEAF_LOGINS).cases) {
  const options = { serverSelectionTimeoutMS: 20000 };
  if (token) {
    options.authMechanismProperties = { OIDC_CALLBACK: async () => ({ accessToken: token, expiresInSeconds: 600 }) };
  }
  let client;
  try {
    client = new MongoClient(uri, options);
    const { authInfo } = await client.db('admin').command({ connectionStatus: 1 });
    const [{ user, db }] = authInfo.authenticatedUsers;
    console.log(`${name}\t${user}@${db}`);
  } catch (error) {
    console.log(`${name}\trefused\t${error.message}`);
  } finally {
    await client?.close();
  }
}
