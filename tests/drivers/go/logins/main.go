// Logs in by each of the cases in $SHEAF_LOGINS (see ../../logins) through the Go driver, version 2.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

type login struct {
	Name, URI, Token string
}

// user tells as whom the client has come in.
func user(ctx context.Context, by login) (string, error) {
	settings := options.Client().ApplyURI(by.URI).SetServerSelectionTimeout(20 * time.Second)
	if by.Token != "" {
		until := time.Now().Add(10 * time.Minute)
		settings.SetAuth(options.Credential{
			AuthMechanism: "MONGODB-OIDC",
			OIDCMachineCallback: func(context.Context, *options.OIDCArgs) (*options.OIDCCredential, error) {
				return &options.OIDCCredential{AccessToken: by.Token, ExpiresAt: &until}, nil
			},
		})
	}
	client, err := mongo.Connect(settings)
	if err != nil {
		return "", err
	}
	defer func() { _ = client.Disconnect(ctx) }()
	var status struct {
		AuthInfo struct {
			AuthenticatedUsers []struct{ User, DB string } `bson:"authenticatedUsers"`
		} `bson:"authInfo"`
	}
	err = client.Database("admin").RunCommand(ctx, bson.D{{Key: "connectionStatus", Value: 1}}).Decode(&status)
	if err != nil {
		return "", err
	}
	first := status.AuthInfo.AuthenticatedUsers[0]
	return first.User + "@" + first.DB, nil
}

func main() {
	var given struct{ Cases []login }
	if err := json.Unmarshal([]byte(os.Getenv("SHEAF_LOGINS")), &given); err != nil {
		panic(err)
	}
	for _, by := range given.Cases {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		name, err := user(ctx, by)
		if err != nil {
			name = "refused\t" + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Printf("%s\t%s\n", by.Name, name)
		cancel()
	}
}
